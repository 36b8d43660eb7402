# find_package(hccl CONFIG), with hccl_DIR=$(hccl-config --cmake-dir): the target hccl::hccl, and
# hccl::Synapse, the stand-in for the runtime of Gaudi.
get_filename_component(_hccl_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET hccl::hccl)
  add_library(hccl::hccl SHARED IMPORTED)
  set_target_properties(hccl::hccl PROPERTIES
    IMPORTED_LOCATION "${_hccl_prefix}/lib/libhccl.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_hccl_prefix}/include;${_hccl_prefix}/include/hccl")
  add_library(hccl::Synapse SHARED IMPORTED)
  set_target_properties(hccl::Synapse PROPERTIES
    IMPORTED_LOCATION "${_hccl_prefix}/lib/libSynapse.so.1"
    INTERFACE_LINK_LIBRARIES hccl::hccl)
endif()
