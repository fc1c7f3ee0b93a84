"""Train, predict, evaluate and calibrate as named jobs: the same for a table, a hub and a Flower run."""
