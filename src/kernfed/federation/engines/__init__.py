"""What carries questions to sites: threads of this process, or Flower."""
