"""The wire protocol of server and clients: codecs for calls, results and errors."""
