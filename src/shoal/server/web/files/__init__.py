"""Files in the console: previews, uploads, downloads, syntax colours."""
