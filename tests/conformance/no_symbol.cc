// A shared object without a plugin's symbol.
extern "C" __attribute__((visibility("default"))) int prun_transport_v0() { return 0; }
