"""The public Python API; `import cropstar` offers it. The command line calls it too."""
