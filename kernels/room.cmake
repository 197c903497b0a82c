# Highway 1.0.3: its list of dynamic targets contradicts itself on machines with the newest AVX-512 (an #error); the
# kernels want the build's own target anyway.
target_compile_definitions(refrain_kernels PRIVATE HWY_COMPILE_ONLY_STATIC)
