"""Flickr8k with both noises of the literature: detection and training."""
