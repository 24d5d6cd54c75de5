"""Other people's models, as their documentation writes them down, measured on the same rows as ours."""
