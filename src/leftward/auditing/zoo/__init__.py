"""Models broken on purpose. Every law must catch the fault that was planted for it."""
