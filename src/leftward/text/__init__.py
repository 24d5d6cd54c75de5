"""Words on their way to the model: files, lines, ids, rows, batches, and their order."""
