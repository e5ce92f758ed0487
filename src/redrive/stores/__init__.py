"""The stores, one package each. Only `redrive.connect` imports them."""
