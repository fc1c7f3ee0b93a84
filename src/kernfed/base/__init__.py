"""What every other package may use: checks of arguments, files, plain values, the hash chain, threads, random names."""
