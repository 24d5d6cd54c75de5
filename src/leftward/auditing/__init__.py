"""Does anything look right? Laws that hold for every decoder, and models broken on purpose that break them."""
