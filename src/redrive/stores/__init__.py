"""The stores: one folder each. Only `redrive.connect` imports them."""
