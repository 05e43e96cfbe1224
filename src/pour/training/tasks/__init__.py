"""Tasks: classify images, segment scenes, match images with texts."""
