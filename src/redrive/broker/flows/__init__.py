"""What each method of a broker does, as generators without I/O. The topics are those of `broker/api`."""
