"""Personalised learning (KME): whom each site learns from, and its model of the weighted risk."""
