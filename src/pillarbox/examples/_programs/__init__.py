"""The examples, each in a folder: programs, which run when they are imported, and no part of the API."""
