// The sum over all ranks, in Rust, without bindgen. Start it as examples/c/all_reduce.c says:
//
//   rustc examples/c/all_reduce.rs -L $(hccl-config --prefix)/lib -l hccl -o all_reduce
//   export LD_LIBRARY_PATH=$(hccl-config --prefix)/lib
use std::ffi::{c_char, c_int, c_void, CStr};

#[repr(C)]
struct UniqueId { internal: [u8; 1024], length: usize } // of length 0: that of HCCL_COMM_ID
const FLOAT: c_int = 7;
const SUM: c_int = 0;

extern "C" {
    fn hcclGetLastErrorMessage() -> *const c_char;
    fn hcclCommInitRank(comm: *mut *mut c_void, size: c_int, id: UniqueId, rank: c_int) -> c_int;
    fn hcclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int,
                     op: c_int, comm: *mut c_void, stream: *mut c_void) -> c_int;
    fn hcclCommDestroy(comm: *mut c_void) -> c_int;
}

fn check(result: c_int) {
    assert!(result == 0, "{:?}", unsafe { CStr::from_ptr(hcclGetLastErrorMessage()) });
}

fn main() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<c_int>().unwrap();
    let (rank, size) = (number("RANK"), number("WORLD_SIZE"));
    let (mut comm, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut data = [1.0f32, 2.0, 3.0, rank as f32];
    let address = data.as_mut_ptr() as *mut c_void;
    unsafe {
        check(hcclCommInitRank(&mut comm, size, UniqueId { internal: [0; 1024], length: 0 }, rank));
        check(hcclAllReduce(address, address, data.len(), FLOAT, SUM, comm, none));
        check(hcclCommDestroy(comm));
    }
    println!("rank {} of {}: {:?}", rank, size, data);
}
