//! What SQLite calls: a file system that is the one below, but for the methods of a log.
//!
//! SQLite gives each file as much memory as its file system asks for. A log has its own methods in front, and behind them
//! the file of the file system below, which each method ends in.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use rusqlite::{Error, ffi};

const NAME: &CStr = c"sprag-wal";

/// The name of this file system, which SQLite knows from now on.
pub(crate) fn registered() -> rusqlite::Result<&'static CStr> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        ffi::SQLITE_OK => Ok(NAME),
        code => Err(Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// What SQLite knows of a file system, and the one below.
#[repr(C)]
struct FileSystem {
    sqlite: ffi::sqlite3_vfs,
    below: *mut ffi::sqlite3_vfs,
}

/// What SQLite knows of a file. The file below stands behind it, in the same memory.
#[repr(C)]
struct Log {
    sqlite: ffi::sqlite3_file,
}

/// Tells SQLite of this file system.
fn register() -> c_int {
    // SAFETY: a null pointer asks for the one that is used by default.
    let below = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    if below.is_null() {
        return ffi::SQLITE_ERROR;
    }
    // SAFETY: SQLite has just said that it is there, and it stays.
    let mut sqlite = unsafe { *below };
    let Ok(own) = c_int::try_from(size_of::<Log>()) else { return ffi::SQLITE_ERROR };
    sqlite.szOsFile += own;
    sqlite.pNext = ptr::null_mut();
    sqlite.zName = NAME.as_ptr();
    // All else is done by the methods below, which look only at what was copied.
    sqlite.xOpen = Some(open_file);
    let file_system = Box::into_raw(Box::new(FileSystem { sqlite, below }));
    // SAFETY: it is never freed.
    unsafe { ffi::sqlite3_vfs_register(file_system.cast(), 0) }
}

/// The methods of a log. Those of later versions are for files that are mapped or have locks.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Opens a log, or any other file as if this crate were not there.
unsafe extern "C" fn open_file(
    file_system: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: this method is only in what `register` has made.
    let below = unsafe { (*file_system.cast::<FileSystem>()).below };
    // SAFETY: as in `register`.
    let Some(open) = (unsafe { (*below).xOpen }) else { return ffi::SQLITE_ERROR };
    if flags & ffi::SQLITE_OPEN_WAL == 0 {
        // SAFETY: these are SQLite's own arguments, and the memory is longer than the file system below asks for.
        return unsafe { open(below, name, file, flags, flags_out) };
    }
    // SAFETY: SQLite gives as much memory as `register` has asked for.
    let file_below = unsafe { below_of(file) };
    // SAFETY: as above; the memory behind the log is as long as the file system below asks for.
    let code = unsafe { open(below, name, file_below, flags, flags_out) };
    // A file without methods is one that SQLite does not close.
    let mut methods = ptr::null();
    if code == ffi::SQLITE_OK {
        methods = &raw const METHODS;
    } else {
        // SAFETY: it was opened, if it has methods.
        unsafe { close_below(file_below) };
    }
    let log = Log { sqlite: ffi::sqlite3_file { pMethods: methods } };
    // SAFETY: the memory is aligned for pointers, which is what a log is aligned for.
    unsafe { file.cast::<Log>().write(log) };
    code
}

/// The file below a log.
///
/// # Safety
/// The memory must be as long as `register` has asked for.
unsafe fn below_of(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: so it is longer than a log.
    unsafe { file.cast::<Log>().add(1).cast() }
}

/// # Safety
/// A file of the file system below, opened or with null for its methods.
unsafe fn close_below(below: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: see above.
    let methods = unsafe { (*below).pMethods };
    // SAFETY: those of an open file are there as long as it is open.
    let methods = unsafe { methods.as_ref() };
    let Some(close) = methods.and_then(|methods| methods.xClose) else { return ffi::SQLITE_OK };
    // SAFETY: this is its own method.
    unsafe { close(below) }
}

/// Calls a method of the file below.
macro_rules! below {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: it was opened by `open_file`.
        let below = unsafe { below_of($file) };
        // SAFETY: an open file has methods.
        match unsafe { (*(*below).pMethods).$method } {
            // SAFETY: this is its own method; its arguments are those that SQLite gave for it.
            Some(method) => unsafe { method(below $(, $argument)*) },
            None => ffi::SQLITE_IOERR,
        }
    }};
}

/// Writes to the file below.
fn written(file: *mut ffi::sqlite3_file, bytes: &[u8], at: i64) -> Result<(), c_int> {
    let Ok(length) = c_int::try_from(bytes.len()) else { return Err(ffi::SQLITE_IOERR) };
    match below!(file, xWrite, bytes.as_ptr().cast(), length, at) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(code),
    }
}

/// Writes what waits, then calls a method of the file below.
macro_rules! flushed {
    ($file:expr, $method:ident $(, $argument:expr)*) => {
        match super::flush($file.addr(), |bytes, at| written($file, bytes, at)) {
            Ok(()) => below!($file, $method $(, $argument)*),
            Err(code) => code,
        }
    };
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    length: c_int,
    at: i64,
) -> c_int {
    let Ok(length) = usize::try_from(length) else { return ffi::SQLITE_IOERR };
    // SAFETY: SQLite says that so many bytes are there.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), length) };
    let taken = super::write(file.addr(), bytes, at, |bytes, at| written(file, bytes, at));
    taken.err().unwrap_or(ffi::SQLITE_OK)
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: it was opened by `open_file`.
    let below = unsafe { below_of(file) };
    // SAFETY: as above.
    unsafe { close_below(below) }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    to: *mut c_void,
    length: c_int,
    at: i64,
) -> c_int {
    flushed!(file, xRead, to, length, at)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    flushed!(file, xTruncate, size)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    flushed!(file, xSync, flags)
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    flushed!(file, xFileSize, size)
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    what: c_int,
    argument: *mut c_void,
) -> c_int {
    flushed!(file, xFileControl, what, argument)
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    below!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    below!(file, xUnlock, level)
}

unsafe extern "C" fn check_reserved_lock(
    file: *mut ffi::sqlite3_file,
    is_reserved: *mut c_int,
) -> c_int {
    below!(file, xCheckReservedLock, is_reserved)
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    below!(file, xSectorSize)
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    below!(file, xDeviceCharacteristics)
}
