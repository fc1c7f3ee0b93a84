"""What travels between learners and sites: messages, schemas, the record of traffic, and how a question is declared."""
