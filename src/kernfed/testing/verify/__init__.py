"""What a site can be made to tell: the same questions to two sites that differ only in what nobody may learn."""
