"""Content-addressed artifacts: file trees cut into chunks that are named by BLAKE3, in a directory or an S3 bucket.

Needs neither server nor torch. Import from the module that owns a name (importing this package is cheap):
backend ChunkStore, StoredChunk, open_store · local LocalStore · s3 S3Store · deposit Deposit · manifest manifest_id,
dump_manifest, load_manifest, check_manifest, chunk_hashes · ignore scan, Scan · pack pack_tree, pack_files, pack_entries,
PackedTree, Entry · known KnownFiles · materialize materialize · archives unpack, Limits · wire encode_frames, decode_frames ·
transfer push, upload, download, Remote · cache NodeCache, CacheUse · gc collect · check check, usage
"""
