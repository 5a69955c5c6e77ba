"""The program: the user's steps, and the vertices and levels that a runtime executes."""
