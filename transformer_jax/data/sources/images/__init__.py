"""Sources of labelled images: sub-folders of files, arrays in an .npz file, TFDS, and drawn shapes and digits.

An example has the features `inputs`, an `images.Picture`, and `targets`, the name of its label.
"""
