"""What the methods of the papers are compared with: federated averaging, and pooled models."""
