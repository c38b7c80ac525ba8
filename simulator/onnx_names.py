"""What nodes and attributes of a compiled ONNX file are called: for a process that loads no kernel to read them."""

DOMAIN = "tilefarm"
ATTRIBUTE = "container"
EP_DOMAIN, EP_OP, EP_ATTRIBUTE = "com.microsoft", "EPContext", "ep_cache_context"
