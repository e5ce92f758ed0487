"""What a server and its clients say to each other: how calls, answers and errors are written down."""
