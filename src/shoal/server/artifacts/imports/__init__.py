"""Import of datasets that the server fetches itself from http(s), S3 and the Hugging Face Hub."""
