"""A local page on which a trained model can be looked into and changed."""
