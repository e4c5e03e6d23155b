"""Number formats and the safetensors container, in numpy; shared by the tools beside this folder."""
