/* The published header by itself, in C. */
#include "abi.h"
#include "device_abi.h"
