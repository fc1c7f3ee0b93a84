"""One round against pooled rows and against its peers, on the same files: data, methods, cells of the table."""
