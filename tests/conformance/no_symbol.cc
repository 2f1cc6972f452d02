// A shared object that is no plugin.
extern "C" __attribute__((visibility("default"))) int prun_transport_v0() { return 0; }
