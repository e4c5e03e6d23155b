"""Reference outputs from Hugging Face transformers; see README.md beside this file."""
