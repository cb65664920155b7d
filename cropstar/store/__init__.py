"""Files that cropstar keeps on disk: tiles, the manifest, model files; each written whole or not at all."""
