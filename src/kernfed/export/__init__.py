"""Models for other programs: MLflow. ONNX files are written by the models themselves, with ``to_onnx``."""
