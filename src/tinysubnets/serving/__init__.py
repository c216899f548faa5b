"""`tsn serve`: a model behind HTTP; only this package needs the extra `serve`."""
