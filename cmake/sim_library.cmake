# SPDX-License-Identifier: MIT
# The PTX simulator (sim/): a stand-in for libcuda that tests open by path; the same with the CUDA runtime over it and the
# attn-sim command, which run any CUDA program. The library never links it, and it is never installed.
file(GLOB attn_sim_sources CONFIGURE_DEPENDS sim/*/*.c)
list(FILTER attn_sim_sources EXCLUDE REGEX "/sim/(runtime|command)/")
add_library(attn_sim_objects OBJECT ${attn_sim_sources}) # also of tests/fuzz/fuzz_ptx.c
target_include_directories(attn_sim_objects PRIVATE ${PROJECT_SOURCE_DIR}/sim)
add_library(attn_sim_cuda MODULE $<TARGET_OBJECTS:attn_sim_objects>)
# Registers are read as integers and as floats; loops over lanes should become vector instructions.
target_compile_options(attn_sim_objects PRIVATE ${attn_warnings} -fno-strict-aliasing -fno-math-errno -fno-trapping-math)
if(CMAKE_C_COMPILER_ID MATCHES "Clang") # its -Wpass-failed complains where a loop over lanes stays scalar
  target_compile_options(attn_sim_objects PRIVATE -Wno-pass-failed)
endif()
if(attn_x86_64)
  target_compile_options(attn_sim_objects PRIVATE ${attn_flags_avx2})
endif()
set_source_files_properties(sim/exec/round.c sim/exec/convert.c PROPERTIES COMPILE_OPTIONS -frounding-math)
set_source_files_properties(sim/exec/mma.c sim/units/wgmma_math.c PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
set_target_properties(attn_sim_objects PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
set_target_properties(attn_sim_cuda PROPERTIES LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
# PTX in fatbins is compressed by zstd.
find_package(PkgConfig REQUIRED)
pkg_check_modules(libzstd IMPORTED_TARGET libzstd)
if(NOT libzstd_FOUND)
  message(FATAL_ERROR "the simulator needs libzstd: run `make deps`, or configure with -DATTN_BUILD_TESTS=OFF and -DATTN_BUILD_SIM=OFF")
endif()
target_link_libraries(attn_sim_objects PRIVATE PkgConfig::libzstd)
target_link_libraries(attn_sim_cuda PRIVATE Threads::Threads m ${CMAKE_DL_LIBS} PkgConfig::libzstd)

# The runtime: one library that programs know as libcuda.so.1 and libcudart.so.12 or .13, and the command that runs them.
set(attn_sim_folder ${PROJECT_BINARY_DIR}/attn-sim-libraries)
file(GLOB attn_sim_runtime_sources CONFIGURE_DEPENDS sim/runtime/*.c)
add_library(attn_sim_runtime SHARED $<TARGET_OBJECTS:attn_sim_objects> ${attn_sim_runtime_sources})
target_include_directories(attn_sim_runtime PRIVATE ${PROJECT_SOURCE_DIR}/sim)
target_compile_options(attn_sim_runtime PRIVATE ${attn_warnings})
target_link_libraries(attn_sim_runtime PRIVATE Threads::Threads m ${CMAKE_DL_LIBS} PkgConfig::libzstd)
target_link_options(attn_sim_runtime PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/sim/runtime/versions.map -Wl,-Bsymbolic)
# Host code that the CuTe DSL generates calls the runtime through these names.
foreach(name cudaGetDeviceCount cudaGetDevice cudaSetDevice cudaDeviceGetAttribute cudaDeviceSynchronize cudaMalloc cudaMallocAsync
        cudaMallocHost cudaMallocManaged cudaFree cudaFreeAsync cudaFreeHost cudaMemcpy cudaMemcpyAsync cudaMemset cudaMemsetAsync
        cudaStreamCreate cudaStreamDestroy cudaStreamSynchronize cudaEventCreate cudaEventRecord cudaEventElapsedTime cudaEventDestroy
        cudaLaunchKernelEx=cudaLaunchKernelExC cudaFuncSetAttribute cudaKernelSetAttributeForDevice
        cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaLibraryLoadData cudaLibraryUnload cudaLibraryGetKernel cudaLibraryGetGlobal
        cuLibraryLoadData=cudaLibraryLoadData cuLibraryUnload=cudaLibraryUnload cuLibraryGetKernel=cudaLibraryGetKernel cuDeviceGet
        cuTensorMapEncodeTiled)
  string(REGEX REPLACE "=.*" "" alias ${name})
  string(REGEX REPLACE ".*=" "" own_name ${name})
  target_link_options(attn_sim_runtime PRIVATE -Wl,--defsym=_${alias}=${own_name})
endforeach()
set_target_properties(attn_sim_runtime PROPERTIES C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${attn_sim_folder}
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/sim/runtime/versions.map)
foreach(name libcuda.so.1 libcudart.so.12 libcudart.so.13)
  add_custom_command(TARGET attn_sim_runtime POST_BUILD
                     COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE_NAME:attn_sim_runtime> ${attn_sim_folder}/${name} VERBATIM)
endforeach()
file(GLOB attn_sim_command_sources CONFIGURE_DEPENDS sim/command/*.c)
add_executable(attn_sim ${attn_sim_command_sources})
target_include_directories(attn_sim PRIVATE ${PROJECT_SOURCE_DIR}/sim)
target_compile_options(attn_sim PRIVATE ${attn_warnings})
set_target_properties(attn_sim PROPERTIES OUTPUT_NAME attn-sim RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
add_dependencies(attn_sim attn_sim_runtime attn_sim_cuda)
