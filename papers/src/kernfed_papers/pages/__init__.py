"""Results of experiments as pages."""
