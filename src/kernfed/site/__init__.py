"""A site: its rows, its policy, what it answers, and its records of both."""
