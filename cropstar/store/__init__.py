"""Files that cropstar writes: tiles, the manifest, model files. Each is written completely or not at all."""
