"""What is trained: classification, segmentation, matching of images and texts."""
