# zlib unpacks gzipped data files.
target_link_libraries(refrain_data PRIVATE ZLIB::ZLIB)
