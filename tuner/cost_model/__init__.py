"""Cost models of cycles: training data, training, and the choice of the model in use."""
