// kvreplay, compiled for a GPU. `kvreplay --device cuda` starts this program.
#include "kvreplay.cpp"
