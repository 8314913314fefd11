"""Datasets of TensorFlow Datasets: source.py reads them, preparing.py writes them, catalogue.py finds them by name."""
