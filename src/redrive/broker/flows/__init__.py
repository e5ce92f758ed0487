"""The methods of a broker as flows: generators without I/O. The topics are those of `broker/api`."""
