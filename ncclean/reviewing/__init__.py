"""A page on which a person goes through pairs and decides about them."""
