"""The broker: the public model of queues and items on top of a store."""
